"""TokenLayout: the one place that knows where [CLS], registers and patches stand."""

from dataclasses import dataclass, replace

from torch import Tensor


@dataclass(frozen=True)
class TokenLayout:
    """Where tokens stand: [CLS][distillation][registers][patches][appended].

    Attributes:
        grid: patch rows and columns.
        cls: whether a [CLS] token leads the sequence.
        registers: trained registers; distillation: tokens as DeiT's distilled models have one.
        appended: test-time registers, after the patches or, with `rotary`, right before them.
        kept: patches left in the sequence where others were removed; None where all are there.
        rotary: whether the blocks rotate queries and keys of all tokens behind the prefix.
        paired: whether attention has a bias for each pair of tokens, which fixes their places.

    >>> layout = TokenLayout((2, 3), registers=4)
    >>> layout.patches, layout.prefix, layout.tokens
    (6, 5, 11)
    """

    grid: tuple[int, int]
    cls: bool = True
    registers: int = 0
    distillation: int = 0
    appended: int = 0
    kept: int | None = None
    rotary: bool = False
    paired: bool = False

    @property
    def patches(self) -> int:
        """Number of patch tokens."""
        return self.grid[0] * self.grid[1] if self.kept is None else self.kept

    @property
    def prefix(self) -> int:
        """Number of tokens before the first patch."""
        return self.own_prefix + (self.appended if self.rotary else 0)

    @property
    def own_prefix(self) -> int:
        """Number of tokens before the first patch that are the model's own."""
        return int(self.cls) + self.distillation + self.registers

    @property
    def corners(self) -> list[int]:
        """The patches in the corners of the grid, as row-major indices."""
        rows, columns = self.grid
        return self._crossings((0, rows - 1), (0, columns - 1))

    @property
    def centre(self) -> list[int]:
        """The four patches around the centre of the grid, as row-major indices."""
        row, column = ((side - 1) // 2 for side in self.grid)
        return self._crossings(
            (row, min(row + 1, self.grid[0] - 1)), (column, min(column + 1, self.grid[1] - 1))
        )

    @property
    def from_centre(self) -> list[int]:
        """The patches from the centre of the grid outwards, as row-major indices."""
        rows, columns = (range(1 - side, side, 2) for side in self.grid)
        distances = [row * row + column * column for row in rows for column in columns]
        return sorted(range(len(distances)), key=distances.__getitem__)

    def _crossings(self, rows: tuple[int, int], columns: tuple[int, int]) -> list[int]:
        return [
            row * self.grid[1] + column
            for row in dict.fromkeys(rows)
            for column in dict.fromkeys(columns)
        ]

    @property
    def tokens(self) -> int:
        """Length of the whole sequence."""
        return self.own_prefix + self.patches + self.appended

    def patch_tokens(self, x: Tensor, dim: int = -2) -> Tensor:
        """The patches of `x` (..., tokens, ...) along `dim`, in row-major order."""
        return self._checked(x, dim).narrow(dim, self.prefix, self.patches)

    def cls_token(self, x: Tensor, dim: int = -2) -> Tensor:
        """The [CLS] token of `x`, with `dim` removed. Raises ValueError for a model without one."""
        if not self.cls:
            raise ValueError("this model has no [CLS] token (it pools its patches)")
        return self._checked(x, dim).select(dim, 0)

    def register_tokens(self, x: Tensor, dim: int = -2) -> Tensor:
        """The trained registers of `x` along `dim`; length 0 where the model has none."""
        return self._checked(x, dim).narrow(dim, self.own_prefix - self.registers, self.registers)

    def appended_tokens(self, x: Tensor, dim: int = -2) -> Tensor:
        """The test-time registers of `x` along `dim`; length 0 where none was appended."""
        start = self.own_prefix if self.rotary else self.own_prefix + self.patches
        return self._checked(x, dim).narrow(dim, start, self.appended)

    def to_grid(self, x: Tensor, dim: int = -1) -> Tensor:
        """`x` with its patch dimension (of length `patches`) unfolded to (rows, columns)."""
        if self.kept is not None:
            raise ValueError(f"{self.kept} patches of {self.grid} are left, which is no grid")
        return x.unflatten(dim, self.grid)

    def rolled(self, x: Tensor, dim: int = -1) -> Tensor:
        """`x` with its patches (of dimension `dim`) moved by half of the grid, rounded down."""
        dim %= x.ndim
        shifts = (self.grid[0] // 2, self.grid[1] // 2)
        return self.to_grid(x, dim).roll(shifts, (dim, dim + 1)).flatten(dim, dim + 1)

    def with_appended(self, count: int) -> "TokenLayout":
        """The layout after `count` test-time registers were appended."""
        if count:
            self.require_free()
        return replace(self, appended=self.appended + count)

    def with_kept(self, count: int) -> "TokenLayout":
        """The layout after all but `count` patches were removed."""
        self.require_free()
        return replace(self, kept=count)

    def require_free(self) -> None:
        """Raise ValueError where attention has a bias for each pair of tokens."""
        if self.paired:
            raise ValueError(
                "attention of this model has a bias for each pair of tokens: none can be added, "
                "removed or moved"
            )

    def _checked(self, x: Tensor, dim: int) -> Tensor:
        if x.shape[dim] != self.tokens:
            raise ValueError(
                f"{x.shape[dim]} tokens in dimension {dim} of {tuple(x.shape)}, the layout has "
                f"{self.tokens}: {self}"
            )
        return x
