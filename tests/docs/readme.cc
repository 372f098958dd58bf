// What the C++ lines of README.md find defined: a parameter, its gradient and its states.
// tests/docs/compiled.py puts them in front of the last brace.
// SPDX-License-Identifier: MIT
#include <octavo/optimizer.h>

#include <vector>

int main() {
  const long n = 1 << 16;
  std::vector<float> weights(n, 0.5F), grads(n, 0.01F), scales_of_m(n / 256), scales_of_v(n / 256);
  std::vector<std::byte> codes_of_m(n), codes_of_v(n);
  float *param = weights.data(), *grad = grads.data(), *m_scales = scales_of_m.data(),
        *v_scales = scales_of_v.data();
  std::byte *m = codes_of_m.data(), *v = codes_of_v.data();
}
