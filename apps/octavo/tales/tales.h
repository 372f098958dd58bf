// Generates text from a grammar, for demos and tests that cannot download any: tales, a corpus of short
// English texts, and short sentences for speech synthesis.
//
// The tales have structure that a small model can learn (agreement, names and pronouns that recur in a tale,
// answers that repeat a word of the question) and enough randomness that they cannot be memorized.
//
// The bytes depend only on the seed and are computed with integer arithmetic, so they are the same on every
// machine. Changing the words or the grammar changes them: tests check hashes.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>

namespace octavo::tales {

// Returns a tale: a heading and its paragraphs, about 1 kB of ASCII that end with an empty line. Tales are
// numbered from 1.
std::string make_tale(std::uint64_t seed, std::uint64_t number);

// Returns the first `bytes` bytes of all tales; a shorter text is a prefix of a longer one. REQUIRES: bytes
// >= 0.
std::string make_text(std::int64_t bytes, std::uint64_t seed);

// Returns a sentence: a few words of a vocabulary of about two hundred, in lower case, without punctuation
// and without a line break. Sentences are numbered from 1 and may repeat.
std::string make_sentence(std::uint64_t seed, std::uint64_t number);

}  // namespace octavo::tales
