"""What a row of a document sees, written down as the paper says it."""

import numpy as np
import numpy.typing as npt

from peagle.train.rollouts import DocumentRows


def visible(rows: DocumentRows) -> npt.NDArray[np.bool_]:
    """Which rows each row attends to, `[rows, rows]`: real slots up to the anchor, its chain."""
    anchor, depth = rows.anchors[:, None], rows.depths[:, None]
    keys, key_depths = rows.anchors[None, :], rows.depths[None, :]
    return ((key_depths == 0) & (keys <= anchor)) | ((keys == anchor) & (key_depths <= depth))
