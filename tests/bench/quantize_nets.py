"""The nets that quantizers are compared on, with the samples that calibrate, select and judge: three sets that share nothing."""
import gzip
import os

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "..", "..")
FASHION = "/usr/share/datasets/fashion-mnist"
FASHION_MEAN, FASHION_STD = 0.2860, 0.3530
CIFAR_MEAN, CIFAR_STD, VIT_STD = (0.4914, 0.4822, 0.4465), (0.2471, 0.2435, 0.2616), (0.2023, 0.1994, 0.2010)
TRAINED = ("mobilenet_v2", "mobilenet_v3", "vit", "mlp")  # in tests/nets
PLAIN = ("fashion_cnn", "cifar10_resnet_2b", "cifar10_resnet_4b")  # plain CNNs, with the stricter target

FASHION_SELECT = 10000  # training images, the last ones; the nets were trained on them, as on those that calibrate
CIFAR_SELECT = 2744  # before the images that calibrate, which leaves 7,000 to judge what was selected on these
RANKINGS, RANKING_SELECT, RANKING_CALIBRATE = 2000, 480, 20  # users, of 100 rows each


def once(path, make):
    """The file, written by make(its name so far) unless it is there."""
    if not os.path.exists(path):
        part = path[:-4] + ".part.npz"
        make(part)
        os.replace(part, path)
    return path


def idx(name):
    with gzip.open("%s/%s-ubyte.gz" % (FASHION, name)) as f:
        return np.frombuffer(f.read(), np.uint8, offset=16 if "idx3" in name else 8)


def fashion_part(begin, end):
    x = idx("train-images-idx3").reshape(-1, 1, 28, 28)[begin:end]
    return ((x.astype(np.float32) / 255 - FASHION_MEAN) / FASHION_STD).astype(np.float32), idx("train-labels-idx1")[begin:end]


def cifar_part(archive, std, begin, end):
    with np.load(archive) as a:
        x = a["x"][begin:end].astype(np.float32) / 255
        x = (x - np.array(CIFAR_MEAN, np.float32)[:, None, None]) / np.array(std, np.float32)[:, None, None]
        return x.astype(np.float32), a["y"][begin:end]


class Net:
    """A model with its data.

    calibration: an npz of floats (indices for a recommender), which every tool reads
    select: labelled samples that budgets are judged on, as `mlopt quantize` takes them; None: the net has none
    evaluation: arguments of `mlopt run` and `eval`; None: no labels, so time and memory only
    fresh: of what evaluates, how many samples did not select either
    """

    def __init__(self, name, path, metric=None):
        self.name, self.path, self.metric = name, path, metric
        self.select = self.evaluation = self.fresh = None
        self.budget = "0.3pt"

    def fashion(self, folder, count):
        calibration, select = "%s/fashion-calibration-%d.npz" % (folder, count), "%s/fashion-select.npz" % folder
        self.calibration = once(calibration, lambda out: np.savez(out, input=fashion_part(0, count)[0]))
        self.select = once(select, lambda out: np.savez(out, **dict(zip("xy", fashion_part(60000 - FASHION_SELECT, 60000)))))
        test = "%s/t10k-images-idx3-ubyte.gz,%s/t10k-labels-idx1-ubyte.gz" % (FASHION, FASHION)
        self.evaluation = ["--data", test, "--normalize", "scale=1/255,mean=0.2860,std=0.3530"]
        self.fresh = 10000
        return self

    def cifar(self, folder, archive, count, std=CIFAR_STD):
        """From the end of the set: images that calibrate, that select; all but those that calibrate judge what selected nothing."""
        tag, calibrate = "%s/cifar-%.4f" % (folder, std[0]), 10000 - count
        part = lambda begin, end: dict(zip("xy", cifar_part(archive, std, begin, end)))  # noqa: E731
        self.calibration = once("%s-calibration-%d.npz" % (tag, count), lambda out: np.savez(out, x=part(calibrate, 10000)["x"]))
        self.fresh = calibrate - CIFAR_SELECT
        self.select = once("%s-select-%d.npz" % (tag, count), lambda out: np.savez(out, **part(self.fresh, calibrate)))
        self.evaluation = ["--data", once("%s-evaluation-%d.npz" % (tag, count), lambda out: np.savez(out, **part(0, calibrate)))]
        return self

    def ranking(self, folder, archive):
        """Whole rankings calibrate, select and judge."""

        def part(begin, end, labels=True):
            with np.load(archive) as a:
                chosen = (a["group"] >= begin) & (a["group"] < end)
                return {k: a[k][chosen] for k in a.files if labels or k not in ("y", "group")}

        calibrate = RANKINGS - RANKING_CALIBRATE
        self.fresh = calibrate - RANKING_SELECT
        self.calibration = once("%s/ranking-calibration.npz" % folder, lambda out: np.savez(out, **part(calibrate, RANKINGS, False)))
        self.select = once("%s/ranking-select.npz" % folder, lambda out: np.savez(out, **part(self.fresh, calibrate)))
        self.evaluation = ["--data", once("%s/ranking-evaluation.npz" % folder, lambda out: np.savez(out, **part(0, calibrate)))]
        self.budget = "1pt"  # of 480 rankings, the float model itself would not show 0.3
        return self

    def random(self, path):
        self.calibration = path
        return self

    def files(self):
        """What results follow from, beside how they are made."""
        data = self.evaluation[1].split(",") if self.evaluation else []
        return [self.path, self.calibration, *data]

    def right(self, outputs):
        """By sample (by ranking): whether the model is right, 0 or 1."""
        if self.metric == "top1":
            images, _, labels = self.evaluation[1].partition(",")
            y = idx(os.path.basename(labels)[: -len("-ubyte.gz")]) if labels else np.load(images)["y"]
            return outputs.reshape(len(y), -1).argmax(-1) == y
        with np.load(self.evaluation[1]) as a:
            y, group = a["y"].ravel(), a["group"].ravel()
        score, found = outputs.ravel(), []
        for g in np.unique(group):  # equal scores rank in the order of the samples
            rows = np.flatnonzero(group == g)
            best = rows[np.argsort(-score[rows], kind="stable")[:10]]
            found.append(y[best].any())
        return np.array(found)


def nets(o):
    """Those of o.nets (all), with their data in o.folder; o.models and o.data: folders of further models and of theirs."""
    found = [Net("fashion_cnn", os.path.join(ROOT, "deploy/models/fashion_cnn.onnx"), "top1").fashion(o.folder, o.samples)]
    for name in TRAINED:
        found.append(Net(name, os.path.join(ROOT, "tests/nets/models", name + ".onnx"), "top1").fashion(o.folder, o.samples))
    if o.models and o.data:
        archive = os.path.join(o.data, "cifar10-test.npz")
        for name, std in (("cifar10_resnet_2b", CIFAR_STD), ("cifar10_resnet_4b", CIFAR_STD), ("vit_cifar10_ibp_3_3_8", VIT_STD),
                          ("vit_cifar10_pgd_2_3_16", VIT_STD)):
            found.append(Net(name, os.path.join(o.models, name + ".onnx"), "top1").cifar(o.folder, archive, o.samples, std))
        ranking = os.path.join(o.data, "ml1m-ranking.npz")
        found.append(Net("neumf_ml1m", os.path.join(o.models, "neumf_ml1m.onnx"), "hit10").ranking(o.folder, ranking))
    return [n for n in found if not o.nets or n.name in o.nets]


def resnet50(folder):
    """Random weights, 128 images of 224 by 224: what quantizing costs."""
    import models

    os.makedirs(os.path.join(folder, "models"), exist_ok=True)
    path = models.build("resnet50", os.path.join(folder, "models"))

    def images(out):
        # smooth noise, so that neighbouring pixels agree as they do in pictures
        rng, coarse = np.random.default_rng(0), (128, 3, 28, 28)
        x = np.kron(rng.standard_normal(coarse), np.ones((1, 1, 8, 8))) + 0.3 * rng.standard_normal((128, 3, 224, 224))
        np.savez(out, input=x.astype(np.float32))

    return Net("resnet50, 128 images", path).random(once("%s/resnet50-calibration.npz" % folder, images))
