"""Arrow tables with images and class names in the format of Hugging Face."""

import io
import json

import pyarrow as pa
from PIL import Image


def picture(colour, size=(3, 2)):
    """Return an image in the struct that Hugging Face uses."""
    file = io.BytesIO()
    Image.new("L", size, colour).save(file, format="PNG")
    return {"bytes": file.getvalue(), "path": "/etc/passwd"}


def described(table, **names):
    """Return the table with Hugging Face's metadata on its classes and a struct."""
    features = {
        column: {"names": own, "_type": "ClassLabel"} for column, own in names.items()
    }
    features["struct"] = {"names": {"dtype": "string", "_type": "Value"}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    return table.replace_schema_metadata(metadata)


def made(**columns):
    table = {"x": [1.0, 2.0], "label": [0, 1], **columns}
    return pa.table({name: values for name, values in table.items() if values})


def femnist():
    """Return four images of two writers; the last of three classes does not occur."""
    columns = {
        "image": [picture(10 * number) for number in range(4)],
        "writer_id": ["w2", "w10", "w2", "w2"],
        "character": [0, 1, 1, 0],
    }
    return described(pa.table(columns), character=["cat", "dog", "emu"])
