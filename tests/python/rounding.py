"""How far two correct float32 implementations of one optimizer may drift apart: a running error analysis.

The library and torch's single-tensor loops (foreach=False, fused=False) evaluate the same real formulas and
differ in where they round. With u = 2^-24 (half an ulp of 1) a rounding of x costs at most u|x|; D(x)
bounds the difference of x between the two sides after any number of steps. Each recurrence below has two
parts: what the operands' own differences become, and, in units of u, the roundings that either side makes.
Constants that both round from the same double are the same float and cost nothing; those that differ are
counted where they enter.

Adam. torch: p *= keep; m += w1 (g - m); v = v b2 + (w2 g) g; d = sqrt(v) / c + eps; p += (-s m) / d.
Octavo: m = fma(b1, m, w1 g); v = fma(b2, v, w2 (g g)); d = fma(sqrt(v), 1/c, eps);
p = fma(-s, m / d, p keep).

  D(g) = wd D(p) + u (wd|p| + 2|g|)          coupled decay only: torch's product, the sum on both sides
  D(m) = b1 D(m) + w1 D(g)
       + u (3 min(w1, b1)|g - m|             torch's lerp, which works from the nearer end
          + |m| + w1|g|                      Octavo's rounded b1 against torch's 1 - w1; its product
          + 2|m'|)                           the last addition of either side
  D(v) = b2 D(v) + 2 w2 |g| D(g)
       + u (b2 v + 4 w2 g^2 + 2 v')          torch's b2 v; two products and the last addition on both sides
  D(d) = D(v) / (2 sqrt(v) c)
       + u (5 sqrt(v) / c + 2 d)             two roots, c and 1/c, torch's division; both additions
  D(U) = s D(m) / d + |U| D(d) / d           U = s m / d
       + 6u |U|                              s and its lr 3; torch's product and division, our division
  D(p) = keep D(p) + |keep - keep'||p| + [decay] 2u|p| + D(U) + 2u|p'|

So a step adds two ulp of the parameter (2u|p| + 2u|p'|; one without decay) and what the moments contribute,
which is weighted with the size of the update. amsgrad's maximum is 1-Lipschitz: D(max) = max of its
arguments' D.

SGD. torch: b = b mu + w g; d = g + mu b (nesterov) or b; p += -lr d. Octavo: each line one fma.

  D(b) = mu D(b) + w D(g) + u (mu|b| + 2w|g| + 2|b'|);  D(d) = D(g) + mu D(b) + u (mu|b| + 2|d|);
  D(p) = D(p) + lr D(d) + u (lr|d| + 2|p'|)

RMSprop. torch: v = v a + (w g) g; mean += w (g - mean); s = v + (-mean) mean; d = sqrt(s) + eps;
p += (-lr g) / d, or with momentum b = b mu + g / d; p += -lr b. Octavo: v and mean as v and m in Adam;
s = fma(-mean, mean, v); b = fma(mu, b, g / d); p = fma(-lr, g / d or b, p). Without centering s is v.

  D(v), D(mean): as Adam's v and m, with a for b2 and b1
  D(s) = D(v) + 2|mean| D(mean) + u (mean^2 + 2s);  D(d) = D(s) / (2 sqrt(s)) + u (2 sqrt(s) + 2d)
  D(U) = lr D(g) / d + |U| D(d) / d + 3u|U|           U = lr g / d: torch's product and division, our division
  D(b) = mu D(b) + D(g) / d + |q| D(d) / d + u (2|q| + mu|b| + 2|b'|)             q = g / d
  D(p) = D(p) + D(U) + 2u|p'|,  or  D(p) + lr D(b) + u (lr|b'| + 2|p'|)

Adagrad. torch: s += g g; d = sqrt(s) + eps; p += (-c g) / d with c = lr / (1 + (t - 1) lr_decay). Octavo
rounds lr first.

  D(s) = D(s) + 2|g| D(g) + u (g^2 + 2s');  D(d) as RMSprop's;  D(U) as there with c, and 2u|U| more for c

Products of D with u or with D are left out; at 1e-4 and less of the first order they are covered by
SECOND_ORDER. Underflow is left out too: callers keep gradients in the range that TINY and the tests'
assertion on it give.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

U = 2.0**-24
SECOND_ORDER = 1.001
TINY = 1e-15  # w2 g^2 stays normal above this: 1e-5 * 1e-30 > 2^-126

Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Hyper:
    """Hyper-parameters by torch's names."""

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    decoupled: bool = True
    amsgrad: bool = False
    maximize: bool = False
    momentum: float = 0.0
    dampening: float = 0.0
    nesterov: bool = False
    alpha: float = 0.99
    centered: bool = False
    lr_decay: float = 0.0
    initial_accumulator_value: float = 0.0


def doubles(array: Any) -> Doubles:
    """A float64 copy of a numpy array or torch tensor."""
    return np.asarray(array, dtype=np.float64).copy()


def keep_factors(hyper: Hyper) -> tuple[float, float]:
    """1 - lr * weight_decay as torch and as the library round it (the library rounds lr first)."""
    if not hyper.decoupled or hyper.weight_decay == 0.0:
        return 1.0, 1.0
    torch_keep = np.float32(1.0 - hyper.lr * hyper.weight_decay)
    return float(torch_keep), float(np.float32(1.0 - float(np.float32(hyper.lr)) * hyper.weight_decay))


@dataclass
class Bound:
    """D of a parameter and its moments, all zero at first: both sides start from the same values."""

    hyper: Hyper
    param: Any = 0.0
    moments: list[Any] = field(default_factory=lambda: [0.0, 0.0, 0.0])

    def _gradient(self, grad: Doubles, before: Doubles) -> tuple[Doubles, Any]:
        g = -grad if self.hyper.maximize else grad
        if self.hyper.decoupled or self.hyper.weight_decay == 0.0:
            return g, 0.0
        decay = self.hyper.weight_decay
        g = g + decay * before
        return g, decay * self.param + U * (decay * abs(before) + 2 * abs(g))

    def adam(self, step: int, grad: Doubles, before: tuple[Doubles, ...], after: tuple[Doubles, ...]) -> None:
        """One step. `before` and `after` are (p, m, v) of one side; with amsgrad also the maximum of v."""
        b1, b2 = self.hyper.betas
        w1, w2 = 1.0 - b1, 1.0 - b2
        p, m, v = before[:3]
        new_p, new_m, new_v = after[:3]
        g, dg = self._gradient(grad, p)
        dm, dv, dmax = self.moments
        dm = b1 * dm + w1 * dg
        dm = dm + U * (3 * min(w1, b1) * abs(g - m) + abs(m) + w1 * abs(g) + 2 * abs(new_m))
        dv = b2 * dv + 2 * w2 * abs(g) * dg + U * (b2 * v + 4 * w2 * g * g + 2 * new_v)
        dmax = np.maximum(dmax, dv)
        self.moments = [dm, dv, dmax]

        under_root, d_root = (after[3], dmax) if self.hyper.amsgrad else (new_v, dv)
        c = np.sqrt(1.0 - b2**step)
        s = self.hyper.lr / (1.0 - b1**step)
        root = np.sqrt(under_root)
        d = root / c + self.hyper.eps
        d_d = np.divide(d_root, 2 * c * root, out=np.zeros_like(root), where=root > 0)
        d_d = d_d + U * (5 * root / c + 2 * d)
        update = abs(s * new_m / d)
        d_update = s * dm / d + update * d_d / d + 6 * U * update

        torch_keep, octavo_keep = keep_factors(self.hyper)
        d_keep = abs(torch_keep - octavo_keep) + (2 * U if torch_keep != 1.0 else 0.0)
        self.param = torch_keep * self.param + d_keep * abs(p) + d_update + 2 * U * abs(new_p)

    def sgd(self, step: int, grad: Doubles, before: tuple[Doubles, ...], after: tuple[Doubles, ...]) -> None:
        """One step; `before` and `after` are (p, momentum buffer), the buffer all zeros without momentum."""
        mu, w = self.hyper.momentum, 1.0 - self.hyper.dampening
        (p, b), (new_p, new_b) = before, after
        g, dg = self._gradient(grad, p)
        db = self.moments[0]
        if mu == 0.0:
            direction, dd = g, dg
        else:
            first = step == 1  # stores the gradient itself
            db = dg if first else mu * db + w * dg + U * (mu * abs(b) + 2 * w * abs(g) + 2 * abs(new_b))
            direction, dd = new_b, db
            if self.hyper.nesterov:
                direction = g + mu * new_b
                dd = dg + mu * db + U * (mu * abs(new_b) + 2 * abs(direction))
        self.moments[0] = db
        lr = self.hyper.lr
        self.param = self.param + lr * dd + U * (lr * abs(direction) + 2 * abs(new_p))

    def rmsprop(
        self, step: int, grad: Doubles, before: tuple[Doubles, ...], after: tuple[Doubles, ...]
    ) -> None:
        """One step; (p, square_avg, momentum_buffer, grad_avg), zeros for what there is not."""
        h = self.hyper
        a, w, mu = h.alpha, 1.0 - h.alpha, h.momentum
        (p, v, b, mean), (new_p, new_v, new_b, new_mean) = before, after
        g, dg = self._gradient(grad, p)
        dv, db, dmean = self.moments
        dv = a * dv + 2 * w * abs(g) * dg + U * (a * v + 4 * w * g * g + 2 * new_v)
        under_root, d_root = new_v, dv
        if h.centered:
            dmean = a * dmean + w * dg
            dmean = dmean + U * (3 * min(w, a) * abs(g - mean) + abs(mean) + w * abs(g) + 2 * abs(new_mean))
            under_root = new_v - new_mean**2
            d_root = dv + 2 * abs(new_mean) * dmean + U * (new_mean**2 + 2 * abs(under_root))
        update, d_update, d_direction = self._divided(g, dg, under_root, d_root, h.lr, 3)
        if mu == 0.0:
            self.param = self.param + d_update + 2 * U * abs(new_p)
        else:
            db = mu * db + d_direction + U * (2 * update / h.lr + mu * abs(b) + 2 * abs(new_b))
            self.param = self.param + h.lr * db + U * (h.lr * abs(new_b) + 2 * abs(new_p))
        self.moments = [dv, db, dmean]

    def adagrad(
        self, step: int, grad: Doubles, before: tuple[Doubles, ...], after: tuple[Doubles, ...]
    ) -> None:
        """One step; `before` and `after` are (p, sum)."""
        (p, _), (new_p, total) = before, after
        g, dg = self._gradient(grad, p)
        ds = self.moments[0] + 2 * abs(g) * dg + U * (g * g + 2 * total)
        rate = self.hyper.lr / (1.0 + (step - 1) * self.hyper.lr_decay)
        _, d_update, _ = self._divided(g, dg, total, ds, rate, 5)
        self.param = self.param + d_update + 2 * U * abs(new_p)
        self.moments[0] = ds

    def _divided(
        self, g: Doubles, dg: Any, under_root: Doubles, d_root: Any, rate: float, roundings: int
    ) -> tuple[Doubles, Any, Any]:
        """|U|, D(U) and D(q) without its own roundings, of q = g / (sqrt(s) + eps) and U = rate q."""
        root = np.sqrt(np.maximum(under_root, 0.0))
        d = root + self.hyper.eps
        d_d = np.divide(d_root, 2 * root, out=np.zeros_like(root), where=root > 0) + U * (2 * root + 2 * d)
        update = abs(rate * g / d)
        d_direction = dg / d + update / rate * d_d / d
        return update, rate * d_direction + roundings * U * update, d_direction


def ratio(candidate: Any, reference: Any, bound: Any) -> float:
    """The largest |candidate - reference| over its bound: at most 1 where the two are the same formula."""
    difference = abs(doubles(candidate) - doubles(reference))
    if difference.size == 0:
        return 0.0
    allowed = SECOND_ORDER * np.broadcast_to(bound, difference.shape) + 2.0**-149
    worst = np.max(difference / allowed)
    return float("inf") if np.isnan(worst) else float(worst)
