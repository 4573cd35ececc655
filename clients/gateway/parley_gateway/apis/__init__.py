"""The APIs of the gateway; each has a function ``routes(gateway) -> APIRouter``."""
