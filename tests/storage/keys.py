"""Keys for S3 in a file that a tool renews."""

from __future__ import annotations

from pathlib import Path

import pytest


def write_keys(file: Path, key: str) -> None:
    """Replaces the keys of the only profile in a file."""
    new = file.with_suffix(".new")
    new.write_text(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = s\naws_session_token = t-{key}\n")
    new.replace(file)


def only_keys(file: Path, patch: pytest.MonkeyPatch) -> None:
    """Makes a file with keys the only place where boto3 finds any."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        patch.delenv(name, raising=False)
    write_keys(file, "first")
    patch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    patch.setenv("AWS_CONFIG_FILE", "/none")
    patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
