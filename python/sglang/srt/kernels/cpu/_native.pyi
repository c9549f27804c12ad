"""Native kernels. They take addresses, and strides in elements; `ops.py` is what checks shapes and types."""

def levels() -> list[str]:
    """The instruction sets that this CPU has kernels for, slowest first."""

def threads() -> int:
    """How many threads a kernel may use when this thread calls it: what torch's OpenMP runtime says."""

def packed_size(outputs: int, inputs: int) -> int:
    """Elements of a packed weight."""

def pack(weight: int, stride: int, outputs: int, inputs: int, packed: int) -> None:
    """Repack a bfloat16 weight `[outputs, inputs]` for Kernels.linear."""

class Kernels:
    """The kernels of one level; raises ValueError for a level that this CPU does not have."""

    def __init__(self, level: str) -> None: ...
    @property
    def level(self) -> str:
        """Its name."""

    def linear(
        self,
        x: int,
        x_stride: int,
        rows: int,
        inputs: int,
        weight: int,
        outputs: int,
        bias: int,
        out: int,
        out_stride: int,
        scales: int,
        /,
    ) -> None:
        """bfloat16 `x @ weight.T + bias`; `weight` is packed, `bias` 0 for none. `scales`: float32 of each output,
        padded, where weights are int8; 0 where they are bfloat16.
        """

    def norm(
        self,
        x: int,
        x_stride: int,
        x_head_stride: int,
        weight: int,
        out: int,
        out_stride: int,
        out_head_stride: int,
        rows: int,
        heads: int,
        size: int,
        eps: float,
        bfloat16: bool,
        /,
    ) -> None:
        """Root mean square norm of each head; `out` may be `x`."""

    def gate(self, x: int, x_stride: int, out: int, rows: int, width: int, bfloat16: bool, /) -> None:
        """`silu(gate) * up` of gate and up side by side."""

    def rotate(
        self,
        x: int,
        x_stride: int,
        x_head_stride: int,
        cosine: int,
        sine: int,
        rows: int,
        heads: int,
        dim: int,
        bfloat16: bool,
        /,
    ) -> None:
        """Rotary embedding in place; the sine's first half is negated."""

    def add(self, x: int, y: int, rows: int, width: int, bfloat16: bool, /) -> None:
        """`x += y`, both contiguous."""

    def lookup(
        self,
        numbers: int,
        table: int,
        packed: bool,
        entries: int,
        width: int,
        out: int,
        rows: int,
        bfloat16: bool,
        /,
    ) -> None:
        """Rows of a table by int64 `numbers`; `packed`: it is a bfloat16 weight from `pack`. Raises IndexError."""

    def turns(
        self,
        positions: int,
        inverse: int,
        pairs: int,
        magnitude: float,
        cosine: int,
        sine: int,
        rows: int,
        bfloat16: bool,
        /,
    ) -> None:
        """Cosine and signed sine `[rows, 2 * pairs]` of int64 `positions`; `inverse`: float32 radians a position."""

    def argmax(self, x: int, x_stride: int, out: int, rows: int, size: int, bfloat16: bool, /) -> None:
        """The first of the largest of each row, to int64 `out`."""

    def draw(
        self,
        x: int,
        x_stride: int,
        bfloat16: bool,
        temperature: int,
        top_k: int,
        top_p: int,
        min_p: int,
        uniform: int,
        out: int,
        rows: int,
        size: int,
        /,
    ) -> None:
        """A token of each row to int64 `out`; int64 `top_k`, float64 `uniform`, the other columns float32."""

    def route(
        self,
        x: int,
        x_stride: int,
        bfloat16: bool,
        weight: int,
        experts: int,
        inputs: int,
        top_k: int,
        normalize: bool,
        scale: float,
        chosen: int,
        shares: int,
        rows: int,
        /,
    ) -> None:
        """The likeliest experts of each row to int64 `chosen` and float32 `shares`; `weight` is float32."""

    def experts(
        self,
        x: int,
        x_stride: int,
        chosen: int,
        shares: int,
        top_k: int,
        held: int,
        first: int,
        count: int,
        inputs: int,
        width: int,
        out: int,
        rows: int,
        /,
    ) -> None:
        """The weighted sum of what a row's experts compute, float32. `held`: four addresses of each of `count` experts
        from number `first` on: gate and up, their scales, down, its scales.
        """

    def narrow(self, x: int, added: int, out: int, rows: int, width: int, bfloat16: bool, /) -> None:
        """float32 `x`, plus `added` unless that is 0, rounded."""

class PagedKernels:
    """The kernels that touch pages of one geometry."""

    def __init__(
        self,
        kernels: Kernels,
        heads: int,
        kv_heads: int,
        page_size: int,
        dim: int,
        scale: float,
        pages_bfloat16: bool,
        /,
    ) -> None: ...
    @property
    def chunks(self) -> bool:
        """Whether `chunk` can be called."""

    def store(
        self,
        pages: int,
        kv: int,
        kv_stride: int,
        bfloat16: bool,
        table: int,
        table_stride: int,
        keys: int,
        first: int,
        queries: int,
        rows: int,
        tokens: int,
        /,
    ) -> None:
        """Write K and V of the rows' tokens. Row i has `keys[i]` tokens, of which this step computes the last
        `queries[i]`; in the step they stand from `first[i]` on. All int32; `tokens` is the sum of `queries`.
        """

    def decode(
        self,
        pages: int,
        q: int,
        q_stride: int,
        out: int,
        bfloat16: bool,
        window: int,
        all_keys: int,
        table: int,
        table_stride: int,
        keys: int,
        first: int,
        queries: int,
        rows: int,
        tokens: int,
        /,
    ) -> None:
        """Attend with one query a row; `all_keys` is the sum of `keys`, `window` 0 for all of them."""

    def chunk(
        self,
        pages: int,
        q: int,
        q_stride: int,
        out: int,
        window: int,
        table: int,
        table_stride: int,
        keys: int,
        first: int,
        queries: int,
        rows: int,
        tokens: int,
        /,
    ) -> None:
        """Attend causally with any number of bfloat16 queries a row."""

class Tape:
    """The calls of a step of `rows` rows of one query. From `begin` to `end` this thread's calls, on whichever kernels,
    are noted down and not performed; those of other rows, and `argmax` and `chunk`, raise ValueError.
    """

    def __init__(self, kernels: Kernels, rows: int, /) -> None: ...
    def begin(self) -> None: ...
    def end(self) -> None: ...
    def __len__(self) -> int: ...
    def play(
        self, table: int, table_stride: int, keys: int, first: int, queries: int, rows: int, tokens: int, /
    ) -> None:
        """Perform them with the first `rows` rows, whose pages are these; as PagedKernels.decode. Without the GIL."""
