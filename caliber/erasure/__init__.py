"""Erasure (``forget``, ``purge``): removes a subject or a task from every copy of its data, and proves it.

``subject`` describes what to look for, ``redaction`` removes it from single records, ``erasing`` walks the relations in
one transaction, ``proving`` reads everything afterwards, ``service`` runs these in order.
"""
