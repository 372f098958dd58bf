// The names that the C++ lines of README.md use: a parameter, its gradient and its states.
// tests/docs/compiled.py puts these lines before the last brace.
// SPDX-License-Identifier: MIT
#include <octavo/engine.hpp>

#include <vector>

int main() {
  const long n = 1 << 16;
  std::vector<float> weights(n, 0.5F), grads(n, 0.01F), scales_of_m(n / 256), scales_of_v(n / 256);
  std::vector<unsigned char> codes_of_m(n), codes_of_v(n);
  float *param = weights.data(), *m_scales = scales_of_m.data(), *v_scales = scales_of_v.data();
  unsigned char *m = codes_of_m.data(), *v = codes_of_v.data();
  std::int64_t steps = 0;
  const std::vector<std::uint32_t> handles = {0};
  const std::vector<const void*> gradients = {grads.data()};
  const std::vector<std::uint8_t> dtypes = {0};
  auto device = octavo::make<octavo_engine_device>();
  auto args = octavo::make<octavo_engine_args>();
  args.devices = &device, args.device_count = 1;
}
