"""All analyses together: the same numbers as each alone, nothing made twice, no more made again than has to be."""

from collections import Counter
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
import torch

from exor.pretrained import alignment, geometry, isotropy, omnibus, spectra
from exor.pretrained.geometry import Geometry, Settings
from exor.pretrained.neighbours import hubness, nearest, overlap
from exor.pretrained.products import Products
from exor.pretrained.store import Store
from exor.pretrained.subjects import INPUT, OUTPUT, PUBLISHED, TIED

N, WIDTH = 240, 12
SETTINGS = Settings(k=5, graph=8, components=9, subspace=4, resamples=50)
COUNTS = np.random.default_rng(0).integers(0, 1000, N)
COUNTS[:20] = 0
GAINS = {OUTPUT: torch.linspace(0.5, 2, WIDTH)}
ALL = {
    *("alignment", "differences", "neighbours", "spectral", "norms", "isotropy", "spectra", "subspaces", "cka"),
    "frequency",
}


def planted(width_of_tied=WIDTH):
    """The tied matrix is a noisy linear image of the output; the input has little to do with both."""
    generator = torch.Generator().manual_seed(0)
    output = torch.randn(N, WIDTH, generator=generator) * torch.linspace(1, 3, WIDTH) + 0.5
    tied = output @ torch.randn(WIDTH, width_of_tied, generator=generator)
    tied += 0.3 * torch.randn(N, width_of_tied, generator=generator)
    inward = torch.randn(N, WIDTH, generator=generator) + 0.1 * output
    return {TIED: tied, INPUT: inward, OUTPUT: output}


def made(matrices=None, comparisons=PUBLISHED, **options):
    options = {"counts": COUNTS, "gains": GAINS, "settings": SETTINGS} | options
    return Geometry(planted() if matrices is None else matrices, comparisons, **options)


def row(finding, table, **where):
    """The only row of a table where columns have these values."""
    frame = finding.tables[table]
    for column, value in where.items():
        frame = frame[frame[column] == value]
    (found,) = frame.to_dict("records")
    return found


@pytest.fixture(scope="module")
def whole():
    return made()


@pytest.fixture(scope="module")
def products():
    return Products(planted())


def test_all_analyses_of_a_pair(whole):
    assert set(whole.analyses) == ALL


@pytest.mark.parametrize(("source", "target"), PUBLISHED)
class TestComparisons:
    def test_alignment(self, whole, products, source, target):
        for kind in alignment.KINDS:
            alone = alignment.align(products, source, target, kind)
            found = row(whole.find("alignment"), "alignment", source=source, target=target, kind=kind)
            assert found["score"] == pytest.approx(alone.score, abs=1e-6)
            assert found["held_out"] == pytest.approx(alone.held_out, abs=1e-6, nan_ok=True)
            assert found["chance"] == pytest.approx(alone.chance, abs=1e-6)
            assert found["low"] <= found["score"] <= found["high"] and not found["refitted"] and found["tokens"] == N
        cosines = whole.find("alignment").arrays[f"linear, {source} → {target}"]
        assert cosines.shape == (N,) and cosines.mean() == pytest.approx(found["score"], abs=1e-6)

    def test_neighbours(self, whole, source, target):
        a, b = (nearest(planted()[name], 5) for name in (source, target))
        for way, lists in (("raw", (a.raw, b.raw)), ("mean removed", (a.centred, b.centred))):
            found = row(whole.find("neighbours"), "knn-overlap", a=source, b=target, rows=way)
            assert found["overlap"] == pytest.approx(overlap(*lists).mean().item())
            assert found["low"] <= found["overlap"] <= found["high"]
            assert found["chance"] == 5 / (N - 1) and found["k"] == 5

    def test_spectral_distance(self, whole, source, target):
        graphs = [nearest(planted()[name], 8).raw for name in (source, target)]
        found = row(whole.find("spectral"), "spectral-distance", a=source, b=target)
        assert found["distance"] == pytest.approx(omnibus.spectral_distance(*graphs, components=9))
        assert (found["k"], found["components"]) == (8, 9)

    def test_subspaces_and_cka(self, whole, products, source, target):
        for space, alone in (("features", spectra.feature_overlap), ("tokens", spectra.token_overlap)):
            found = row(whole.find("subspaces"), "subspaces", a=source, b=target, space=space)
            assert found["squared"] == pytest.approx(alone(products, source, target, 4).squared, abs=1e-6)
        found = row(whole.find("cka"), "cka", a=source, b=target)
        assert found["cka"] == pytest.approx(spectra.linear_cka(products, source, target), abs=1e-6)
        assert found["chance"] < 0.2


@pytest.mark.parametrize("name", [TIED, INPUT, OUTPUT])
def test_each_matrix(whole, products, name):
    matrix = planted()[name]
    found = row(whole.find("norms"), "norms", matrix=name, rows="raw")
    assert found["frobenius"] == pytest.approx(float(matrix.norm()), rel=1e-6)
    for way in ("raw", "mean removed"):
        centred = way != "raw"
        rows = (matrix - matrix.mean(0) if centred else matrix).double()
        singular = torch.linalg.svdvals(rows).numpy()
        values = whole.find("spectra").tables["singular-values"].query("matrix == @name and rows == @way")["value"]
        np.testing.assert_allclose(values, singular, rtol=1e-4)
        assert row(whole.find("spectra"), "ranks", matrix=name, rows=way)["rank"] == WIDTH
        alone = isotropy.isotropy(products, name, centred=centred)
        found = row(whole.find("isotropy"), "isotropy", matrix=name, rows=way)
        assert found["mean_cosine"] == pytest.approx(alone.mean_cosine, abs=1e-6)
        hubs = row(whole.find("neighbours"), "hubness", matrix=name, rows=way)
        lists = nearest(matrix, 5)
        assert hubs["skewness"] == pytest.approx(hubness(lists.centred if centred else lists.raw).skewness)


def test_pairs_of_matrices_and_frequency(whole):
    lengths = {name: matrix.double().norm(dim=1).numpy() for name, matrix in planted().items()}
    for a, b in combinations(lengths, 2):
        table = whole.find("norms").tables["norm-correlations"]
        (found,) = table[[{a, b} == {x, y} for x, y in zip(table["a"], table["b"], strict=True)]]["pearson"]
        assert found == pytest.approx(np.corrcoef(lengths[a], lengths[b])[0, 1], abs=1e-5)
    seen = COUNTS > 0
    for name in lengths:
        found = row(whole.find("frequency"), "frequency-correlations", matrix=name)
        expected = np.corrcoef(np.log10(COUNTS[seen] + 1), lengths[name][seen])[0, 1]
        assert found["pearson"] == pytest.approx(expected, abs=1e-5) and found["tokens"] == seen.sum()
    folded = row(whole.find("norms"), "norms", matrix=OUTPUT, rows="norm folded in")
    assert folded["frobenius"] == pytest.approx(float((planted()[OUTPUT] * GAINS[OUTPUT]).norm()), rel=1e-6)


def test_the_difference_is_output_less_input(whole):
    scores = whole.find("alignment").tables["alignment"].set_index(["source", "target", "kind"])["score"]
    table = whole.find("differences").tables["differences"]
    for kind in ("orthogonal", "linear"):
        of_all = table[(table["kind"] == kind)].iloc[0]
        expected = scores[OUTPUT, TIED, kind] - scores[INPUT, TIED, kind]
        assert of_all["difference"] == pytest.approx(expected, abs=1e-5)
    assert scores[OUTPUT, TIED, "linear"] > 0.9 > scores[INPUT, TIED, "linear"]


def test_nothing_is_made_twice(monkeypatch):
    searched = Counter()
    matrices = planted()

    def counted(matrix, k, **options):
        searched[next(name for name, known in matrices.items() if known is matrix)] += 1
        return nearest(matrix, k, **options)

    monkeypatch.setattr(geometry, "nearest", counted)
    g = made(matrices)
    for name in g.analyses:
        assert g.find(name) is g.find(name)
    assert searched == dict.fromkeys(matrices, 1)
    grams = {(name, name) for name in matrices}
    crosses = {frozenset(pair) for pair in PUBLISHED}
    assert set(g.products.passes.values()) == {1}
    made_of = [key for key in g.products.passes if len(key) == 2]
    assert {key for key in made_of if key[0] == key[1]} == grams
    assert sorted(map(sorted, crosses)) == sorted(sorted(key) for key in made_of if key[0] != key[1])
    shuffled = [key for key in g.products.passes if len(key) == 3]
    assert sorted(shuffled) == sorted((a, b, "shuffled") for a, b in PUBLISHED)


class TestStore:
    def run(self, folder, fresh=False, **options):
        """Names of analyses that were made, others came from the store."""
        g = made(store=Store(folder, fresh=fresh), **options)
        return {name for name in g.analyses if not g.find(name).reused}

    @pytest.fixture(autouse=True)
    def kept(self, tmp_path, monkeypatch):
        assert self.run(tmp_path) == ALL
        self.searches = 0

        def counted(*arguments, **options):
            self.searches += 1
            return nearest(*arguments, **options)

        monkeypatch.setattr(geometry, "nearest", counted)

    def test_the_same_again_makes_nothing(self, tmp_path):
        assert self.run(tmp_path) == set() and self.searches == 0
        first, again = made(), made(store=Store(tmp_path))
        for name in again.analyses:
            for table, frame in first.find(name).tables.items():
                assert again.find(name).tables[table].equals(frame.astype(again.find(name).tables[table].dtypes))

    @pytest.mark.parametrize(
        ("setting", "depend"),
        [
            ({"k": 6}, {"neighbours"}),
            ({"graph": 7}, {"spectral"}),
            ({"components": 8}, {"spectral"}),
            ({"subspace": 3}, {"subspaces"}),
            ({"resamples": 40}, {"alignment", "differences", "neighbours"}),
            ({"seed": 1}, {"alignment", "differences", "neighbours", "subspaces", "cka"}),
        ],
    )
    def test_another_setting(self, tmp_path, setting, depend):
        assert self.run(tmp_path, settings=replace(SETTINGS, **setting)) == depend
        assert self.searches == (3 if "graph" in setting else 0)

    def test_other_counts_and_gains(self, tmp_path):
        assert self.run(tmp_path, counts=COUNTS + 1) == {"differences", "frequency"}
        assert self.run(tmp_path, gains={OUTPUT: GAINS[OUTPUT] + 1}) == {"norms"}
        assert self.run(tmp_path, counts=None) == {"differences"}

    def test_another_matrix(self, tmp_path):
        matrices = planted()
        matrices[TIED][3, 4] += 1e-3
        assert self.run(tmp_path, matrices=matrices) == ALL
        assert self.searches == 1

    def test_other_comparisons(self, tmp_path):
        assert "alignment" in self.run(tmp_path, comparisons=PUBLISHED[:2])

    def test_fresh(self, tmp_path):
        assert self.run(tmp_path, fresh=True) == ALL and self.searches == 3

    @pytest.mark.parametrize("name", ["alignment", "nearest"])
    def test_damaged(self, tmp_path, name):
        for path in tmp_path.glob(f"{name}-*"):
            path.write_bytes(path.read_bytes()[:-200])
        if name == "alignment":
            assert self.run(tmp_path) == {"alignment"}
        else:
            (spectral,) = tmp_path.glob("spectral-*")
            spectral.unlink()
            assert self.run(tmp_path) == {"spectral"} and self.searches == 3
        assert self.run(tmp_path) == set()


def test_one_matrix():
    g = Geometry({TIED: planted()[TIED]}, (), settings=SETTINGS)
    assert g.analyses == ["neighbours", "norms", "isotropy", "spectra"]
    found = {name: g.find(name).tables for name in g.analyses}
    assert found["neighbours"]["knn-overlap"].empty and len(found["neighbours"]["hubness"]) == 2
    assert found["norms"]["norm-correlations"].empty and found["spectra"]["spectrum-correlations"].empty


def test_widths_that_differ():
    g = made(planted(width_of_tied=20))
    table = g.find("alignment").tables["alignment"]
    across = table[table["target"] == TIED]
    assert across["kind"].tolist() == ["linear", "linear"] and len(table) == 2 + len(alignment.KINDS)
    notes = [note for note in g.find("alignment").notes if "one width" in note]
    assert len(notes) == 2 and f"{OUTPUT} → {TIED}" in notes[0] and "12 and 20" in notes[0]
    assert g.find("differences").tables["differences"]["kind"].unique().tolist() == ["linear"]
    spaces = g.find("subspaces").tables["subspaces"]
    assert spaces[spaces["b"] == TIED]["space"].unique().tolist() == ["tokens"]
    for name in g.analyses:
        assert g.find(name).tables


def test_small_vocabularies_bound_the_settings():
    matrices = {name: matrix[:7, :3] for name, matrix in planted().items()}
    g = Geometry(matrices, PUBLISHED, settings=Settings(resamples=20))
    for name in g.analyses:
        assert g.find(name).tables
    assert set(g.find("neighbours").tables["hubness"]["k"]) == {6}
    distances = g.find("spectral").tables["spectral-distance"]
    assert set(distances["components"]) == {13} and set(distances["k"]) == {6}
