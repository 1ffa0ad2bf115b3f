"""A matrix that stays in the blocks a file holds: codes of 4 or 8 bits, a scale (and zero) a group of 32 columns.

It multiplies (`Blocked` in linear.py) and is looked up by row (embedding.py), so that a head and the embedding it is
tied to are one matrix in memory, about as large as in the file.
"""

from __future__ import annotations

from typing import Final

import torch
import torch.nn.functional as F

GROUP: Final = 32
ROWS: Final = 16
"""Rows of a tile: what the product takes at once (see kernels/tile.py)."""
_CHUNK: Final = 2**20
"""Codes put into order at a time."""


class BlockMatrix:
    """W [rows, width] with w = code * scale + zero."""

    def __init__(self, codes: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor) -> None:
        """Put the codes into the order in which the product reads them; none changes.

        Args:
            codes: uint8 [N, K] of 0 to 15, or int8 [N, K].
            scale: fp32 [N, K / 32].
            zero: fp32 [N, K / 32]; all 0 for int8.
        """
        self.rows, self.width = codes.shape
        self.bits = 4 if codes.dtype == torch.uint8 else 8
        tiles, groups = -(-self.rows // ROWS), self.width // GROUP
        halves = () if self.bits == 4 else (2,)
        self.codes = torch.empty(tiles, groups, GROUP // 4, *halves, ROWS, 2, dtype=codes.dtype)
        step = max(1, _CHUNK // (ROWS * self.width))
        for start in range(0, tiles, step):  # all at once would take the matrix twice more
            part = self.codes[start : start + step]
            rows = codes[start * ROWS : (start + step) * ROWS]
            rows = F.pad(rows, (0, 0, 0, -len(rows) % ROWS))
            # [tile, row, group, 4 columns, pair, column of the pair] -> [tile, group, 4 columns, pair, row, column]
            ordered = rows.view(-1, ROWS, groups, GROUP // 4, 2, 2).permute(0, 2, 3, 4, 1, 5)
            part.copy_(ordered[:, :, :, 0] | (ordered[:, :, :, 1] << 4) if self.bits == 4 else ordered)
        scale, zero = (F.pad(t, (0, 0, 0, -self.rows % ROWS)) for t in (scale, zero))
        self.scales = _tiled(scale)
        self.zeros = _tiled(zero) if self.bits == 4 else None
        if self.zeros is not None and self.zeros.dtype != self.scales.dtype:
            self.scales, self.zeros = self.scales.float(), self.zeros.float()

    @property
    def nbytes(self) -> int:
        """Bytes resident."""
        return self.codes.nbytes + self.scales.nbytes + (0 if self.zeros is None else self.zeros.nbytes)

    def lookup(self, ids: torch.Tensor) -> torch.Tensor:
        """Return rows, fp32 [T, K], for ids [T]."""
        tile, row = ids // ROWS, ids % ROWS
        if self.bits == 4:
            low_high = self.codes[tile, :, :, row]  # [T, groups, 4 columns, column of the pair]
            codes = torch.stack((low_high & 15, low_high >> 4), dim=3)
        else:
            codes = self.codes[tile, :, :, :, row]
        values = codes.reshape(len(ids), -1, GROUP).float() * self.scales[tile, :, row, None].float()
        if self.zeros is not None:
            values += self.zeros[tile, :, row, None].float()
        return values.flatten(1)

    def dense(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Return the whole matrix [N, K], exact in fp32, else rounded to `dtype`."""
        made = torch.empty(self.rows, self.width, dtype=dtype)
        groups = self.width // GROUP
        step = max(1, _CHUNK // (ROWS * self.width))
        for start in range(0, len(self.codes), step):  # all at once would take several times as much
            part = slice(start, start + step)
            codes = self.codes[part]
            if self.bits == 4:
                codes = torch.stack((codes & 15, codes >> 4), dim=3)
            # [tile, group, 4 columns, pair, row, column of the pair] -> [tile, row, group, column]
            values = codes.permute(0, 4, 1, 2, 3, 5).reshape(-1, ROWS, groups, GROUP).float()
            values *= self.scales[part].float().transpose(1, 2)[..., None]
            if self.zeros is not None:
                values += self.zeros[part].float().transpose(1, 2)[..., None]
            rows = made[start * ROWS : (start + step) * ROWS]
            rows.copy_(values.view(-1, self.width)[: len(rows)])
        return made


def block_bytes(bits: int, rows: int, width: int, *, half: bool = True) -> int:
    """Return the bytes a matrix takes in its blocks; scales (and, of 4 bits, zeros) in half or single precision."""
    rows += -rows % ROWS
    numbers = (2 if bits == 4 else 1) * rows * (width // GROUP)
    return rows * width * bits // 8 + numbers * (2 if half else 4)


def _tiled(values: torch.Tensor) -> torch.Tensor:
    """Return [N, groups] as [tile, group, row], in half precision where that is exact, as it is for most files."""
    tiled = values.view(-1, ROWS, values.shape[1]).transpose(1, 2).contiguous()
    half = tiled.half()
    return half if torch.equal(half.float(), tiled) else tiled
