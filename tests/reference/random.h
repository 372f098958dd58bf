// The random bits that docs/formats.md defines for stochastic rounding and for dropout.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/dropout.h>

#include <cstdint>

namespace reference {

// Returns sixteen random bits of element `index` of a parameter. Stream 0 is the weights', 1 + slot a
// moment's.
std::uint32_t random16(std::uint64_t seed, std::uint64_t step, std::uint64_t id, std::uint32_t stream,
                       std::uint64_t index);

// Returns sixteen random bits of an element of a moment whose codes are rounded stochastically in blocks.
std::uint32_t code_random16(std::uint64_t seed, std::uint64_t step, std::uint64_t id, int slot,
                            std::uint64_t index);

// Returns sixteen random bits of a sample's element.
std::uint32_t dropout16(std::uint64_t seed, std::uint64_t step, std::int64_t sample, std::uint32_t layer,
                        std::uint64_t element);

// Works like octavo::dropout on the CPU, element by element.
void dropout(const octavo::DropoutArgs& args);

}  // namespace reference
