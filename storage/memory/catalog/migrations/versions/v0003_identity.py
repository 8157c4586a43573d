"""The id of a catalog, by which its workspace knows it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from driftline.storage.model import new_ulid

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.add_column("ltm_about", sa.Column("catalog_id", sa.String(32)))
    op.execute(sa.text("UPDATE ltm_about SET catalog_id = :id").bindparams(id=new_ulid()))
