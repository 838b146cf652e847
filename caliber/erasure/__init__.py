"""Forgetting: a subject or a task, through every copy that is kept of it.

``subject`` says what is looked for, ``redaction`` takes it out of single records, ``erasing`` walks the relations in
one transaction, ``proving`` reads everything afterwards, ``service`` puts them in order.
"""
