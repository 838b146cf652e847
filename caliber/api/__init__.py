"""The handle: opening, ``Caliber``, tenants, and the asynchronous face."""
