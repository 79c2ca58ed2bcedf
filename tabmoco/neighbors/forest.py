"""A forest that tells rows from rows made to lie outside the data.

Shi and Horvath, "Unsupervised Learning with Random Forest Predictors", 2006, section 2: trees learn to tell the rows
from synthetic ones, and so learn where the data lie without a label. The trees are extremely randomised (Geurts, Ernst,
Wehenkel, "Extremely randomized trees", 2006), grown by scikit-learn and kept as plain arrays. Each sees a part of the
rows only; a row of the reference is judged by the trees that did not see it, as if it were new.

NOTE[DIFF]: the paper's synthetic rows are drawn column by column; those of `tabmoco.outside` are damaged, moved and
mixed rows of several kinds, most of them near the data.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int
from sklearn.tree import ExtraTreeClassifier

from tabmoco.errors import ModelFileError
from tabmoco.tables.arrays import require_array

N_TREES = 100
MIN_LEAF = 3
"""Rows in a leaf at least."""

MAX_DEPTH = 64

SEEN_SHARE = 0.63
"""Share of the rows that a tree is grown on."""

MIN_OUTSIDE = 5_000
"""Rows from outside that a tree is grown on at least; else as many as rows from inside."""

SURE = 1e-3
"""Shares of trees' votes nearer to 0 or 1 than this count as this."""

CHUNK_ROWS = 512
"""Rows that go down all trees at once; more would leave the processor's cache."""

TRACED_ROWS = 128
"""The same where every node on the way is kept."""

STEPS_AT_ONCE = 4
"""Steps after which rows that have reached a leaf stop: looking after every step would cost more than it saves."""

DTYPES = {
    "root": np.int32, "child": np.int32, "coordinate": np.int32, "threshold": np.float32, "outside": np.float32,
    "seen": np.uint8,
}  # fmt: skip
"""Types in which a forest is kept."""


@dataclass(frozen=True)
class OutsideForest:
    """`T` trees of `M` nodes in all. A node's children lie side by side; a leaf is its own left child and sends no row
    to the right."""

    root: Int[np.ndarray, " T"]

    child: Int[np.ndarray, " M"]
    """The left child; the right one follows it."""

    coordinate: Int[np.ndarray, " M"]
    """Which coordinate is compared."""

    threshold: Float[np.ndarray, " M"]
    """Larger values go right; infinite in a leaf."""

    outside: Float[np.ndarray, " M"]
    """Share of rows from outside among those that reach the node, both kinds weighing the same in all."""

    seen: Bool[np.ndarray, "n T"]
    """Whether a reference row helped to grow a tree."""

    @classmethod
    def grow(
        cls,
        inside: Float[np.ndarray, "n W"],
        outside: Float[np.ndarray, "m W"],
        origin: Int[np.ndarray, " m"],
        *,
        seed: int,
    ) -> OutsideForest:
        """Learn to tell `inside` from `outside`, both weighing the same in every tree.

        `origin` says from which row inside each row outside was made: a tree that does not see the one does not see the
        other either, or the rows it judges afterwards would be those whose surroundings it was told are outside.
        Without any row from outside those from inside stand in for them, and nothing is told apart.
        """
        random = np.random.default_rng(seed)
        seen = random.random((len(inside), N_TREES)) < SEEN_SHARE
        seen[random.integers(len(inside), size=N_TREES), np.arange(N_TREES)] = True  # no tree sees none
        states = random.integers(2**31, size=N_TREES)
        trees = []
        for number in range(N_TREES):
            known = inside[seen[:, number]]
            allowed = np.flatnonzero(seen[origin, number])
            drawn = random.integers(max(len(allowed), 1), size=max(len(known), MIN_OUTSIDE))
            strange = outside[allowed[drawn]] if len(allowed) else known
            tree = ExtraTreeClassifier(min_samples_leaf=MIN_LEAF, max_depth=MAX_DEPTH, random_state=int(states[number]))
            label = np.repeat([0, 1], [len(known), len(strange)])
            weight = np.repeat([1 / len(known), 1 / len(strange)], [len(known), len(strange)])
            trees.append(_side_by_side(tree.fit(np.concatenate([known, strange]), label, weight).tree_))
        root = np.cumsum([0, *(len(tree["child"]) for tree in trees[:-1])], dtype=np.int32)
        return cls(
            root=root,
            child=np.concatenate([tree["child"] + start for tree, start in zip(trees, root, strict=True)]),
            coordinate=np.concatenate([tree["coordinate"] for tree in trees]),
            threshold=np.concatenate([tree["threshold"] for tree in trees]),
            outside=np.concatenate([tree["outside"] for tree in trees]),
            seen=seen,
        )

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Everything needed to build this forest again."""
        return {**vars(self), "seen": self.seen.view(np.uint8)}

    @classmethod
    def from_arrays(cls, arrays: dict[str, np.ndarray]) -> OutsideForest:
        """The inverse of `to_arrays`, after checking that every way down a tree ends in a leaf."""
        for name, dtype in DTYPES.items():
            require_array(f"a forest's {name}", arrays[name], dtype, (None,) * arrays[name].ndim, finite=False)
        forest = cls(**{**arrays, "seen": arrays["seen"].astype(bool)})
        if not forest._is_sound():
            raise ModelFileError("the trees of the forest do not lead to leaves; train the model again.")
        return forest

    def _is_sound(self) -> bool:
        n_nodes, n_trees = self.child.size, self.root.size
        nodes = (self.child, self.coordinate, self.threshold, self.outside)
        if n_trees == 0 or self.root.ndim != 1 or self.seen.shape[1:] != (n_trees,):
            return False
        if any(array.shape != (n_nodes,) for array in nodes):
            return False
        place = np.arange(n_nodes)
        leaf = self.child == place
        inner = self.child[~leaf]
        return bool(
            (self.threshold[leaf] == np.inf).all()
            and np.isfinite(self.threshold[~leaf]).all()
            and ((self.outside >= 0) & (self.outside <= 1)).all()
            and (inner > place[~leaf]).all()
            and (inner < n_nodes - 1).all()
            and (self.coordinate >= 0).all()
            and (self.root >= 0).all()
            and (self.root < n_nodes).all()
            and self._depth(leaf) <= MAX_DEPTH
        )

    def _depth(self, leaf: Bool[np.ndarray, " M"]) -> int:
        """Steps from the roots to the farthest leaf, counted up to one more than `MAX_DEPTH`."""
        nodes, depth = np.unique(self.root), 0
        while (nodes := nodes[~leaf[nodes]]).size and depth <= MAX_DEPTH:
            nodes, depth = np.unique(np.concatenate([self.child[nodes], self.child[nodes] + 1])), depth + 1
        return depth

    def evidence(self, points: Float[np.ndarray, "N W"], twin: Int[np.ndarray, " N"]) -> Float[np.ndarray, " N"]:
        """Log-odds of lying outside, float64; `twin` is each row's place among those it was grown on, or -1."""
        share = np.empty(len(points))
        for start in range(0, len(points), CHUNK_ROWS):
            part = slice(start, start + CHUNK_ROWS)
            votes = self.outside.take(self._leaves(np.ascontiguousarray(points[part])))
            share[part] = (votes * self._weights(twin[part])).sum(1)
        share = np.clip(share, SURE, 1 - SURE)
        return np.log(share / (1 - share))

    def contributions(self, points: Float[np.ndarray, "N W"], twin: Int[np.ndarray, " N"]) -> Float[np.ndarray, "N W"]:
        """How far each coordinate moves the share of votes for outside, on the way from the roots to the leaves.

        A row sums to its share of votes minus that of the roots (Saabas, "Interpreting random forests", 2014).
        """
        moved = np.empty(points.shape)
        for start in range(0, len(points), TRACED_ROWS):
            part = slice(start, start + TRACED_ROWS)
            given, weight = np.ascontiguousarray(points[part]), self._weights(twin[part])
            way = self._way(given)
            step = np.diff(self.outside.take(way), axis=1) * weight.T[:, None]
            owner = np.arange(0, given.size, given.shape[1]) + self.coordinate.take(way[:, :-1])
            moved[part] = np.bincount(owner.ravel(), step.ravel(), given.size).reshape(given.shape)
        return moved

    def _weights(self, twin: Int[np.ndarray, " N"]) -> Float[np.ndarray, "N T"]:
        """Weight of each tree's vote on each row: equal for the trees that did not see it, or for all if all did."""
        allowed = np.ones((len(twin), len(self.root)))
        known = twin >= 0
        allowed[known] = ~self.seen[twin[known]]
        allowed[~allowed.any(1)] = 1.0
        return allowed / allowed.sum(1, keepdims=True)

    def _leaves(self, points: Float[np.ndarray, "N W"]) -> Int[np.ndarray, "N T"]:
        """The leaf that each row reaches in each tree. All go down at once; those that are there stop now and then."""
        first, leaf = self._start(points)
        under_way = np.arange(leaf.size)
        while under_way.size:
            own, node = first.take(under_way), leaf.take(under_way)
            for _ in range(STEPS_AT_ONCE):
                before, node = node, self._below(points, own, node)
            leaf[under_way] = node
            under_way = under_way[node != before]
        return np.ascontiguousarray(leaf.reshape(len(self.root), len(points)).T)

    def _way(self, points: Float[np.ndarray, "N W"]) -> Int[np.ndarray, "T S N"]:
        """The nodes that each row passes in each tree, from the root on; the last one stands again where a way is
        shorter than others."""
        first, node = self._start(points)
        way = [node]
        while len(way) < 2 or not np.array_equal(way[-1], way[-2]):
            way.append(self._below(points, first, way[-1]))
        return np.stack([node.reshape(len(self.root), len(points)) for node in way], axis=1)

    def _start(self, points: Float[np.ndarray, "N W"]) -> tuple[Int[np.ndarray, " TN"], Int[np.ndarray, " TN"]]:
        """Where a row's values begin, and the root, for each row in each tree."""
        first = np.arange(0, points.size, points.shape[1], dtype=np.int32)
        return np.tile(first, len(self.root)), np.repeat(self.root, len(points))

    def _below(
        self, points: Float[np.ndarray, "N W"], first: Int[np.ndarray, " P"], node: Int[np.ndarray, " P"]
    ) -> Int[np.ndarray, " P"]:
        """The child that a row goes to, or the leaf it is in; the row's values begin at `first`."""
        goes_right = points.take(first + self.coordinate.take(node)) > self.threshold.take(node)
        return self.child.take(node) + goes_right


def _side_by_side(tree) -> dict[str, np.ndarray]:  # type: ignore[no-untyped-def]
    """A scikit-learn tree with its nodes reordered, level by level, so that siblings are neighbours."""
    left, right = tree.children_left, tree.children_right
    order = np.empty(tree.node_count, dtype=np.int64)
    child = np.arange(tree.node_count, dtype=np.int32)
    order[0], n_placed, level = 0, 1, np.array([0])
    while level.size:
        inner = level[left[order[level]] >= 0]
        child[inner] = n_placed + 2 * np.arange(len(inner))
        order[n_placed : n_placed + 2 * len(inner) : 2] = left[order[inner]]
        order[n_placed + 1 : n_placed + 2 * len(inner) : 2] = right[order[inner]]
        level = np.arange(n_placed, n_placed + 2 * len(inner))
        n_placed += 2 * len(inner)
    leaf = left[order] < 0
    value = tree.value[order, 0, :]
    threshold = tree.threshold[order].astype(np.float32)
    above = threshold > tree.threshold[order]  # rounded down, so that float32 values go the way they went in training
    threshold[above] = np.nextafter(threshold[above], np.float32(-np.inf))
    return {
        "child": child,
        "coordinate": np.where(leaf, 0, tree.feature[order]).astype(np.int32),
        "threshold": np.where(leaf, np.float32(np.inf), threshold),
        "outside": (value[:, 1] / value.sum(1)).astype(np.float32),
    }
