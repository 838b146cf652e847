"""PostgreSQL: what belongs to this one database. So far a private server; importing the room loads no driver."""
