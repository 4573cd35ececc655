"""Every protocol by which clients come in: each door is a module with ``routes(gateway) -> APIRouter``."""
