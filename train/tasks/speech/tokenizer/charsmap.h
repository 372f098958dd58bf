// The character map of a SentencePiece model (`precompiled_charsmap`): a trie in a double array, and the
// texts that its leaves refer to. SentencePiece follows the trie without bounds checks, so the trie of a
// model is checked before SentencePiece reads it.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"

#include <string_view>

namespace octavo_train {

// Returns an error if a search could read outside the map. An empty map is valid.
Status check_charsmap(std::string_view charsmap);

}  // namespace octavo_train
