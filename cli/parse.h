// Parses the values of flags.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace octavo::cli {

// Returns the parts of "a,b,c"; at least one, which may be empty.
std::vector<std::string_view> comma_separated(std::string_view text);

// Parses 67108864, 2^26, 64M (K or k, M, G: powers of 1000) or 64Mi (Ki, Mi, Gi: powers of 1024); 1 to 2^50.
// Anything else is a usage Failure that names the flag.
std::int64_t parse_numel(std::string_view text, std::string_view flag = "--numel");

}  // namespace octavo::cli
