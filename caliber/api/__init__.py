"""Public API: functions that open a store, the ``Caliber`` handle, tenants, and the asynchronous variants."""
