// Defines the opcodes of Python's pickle that a state dict needs, and the names of all opcodes for messages.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>

namespace octavo_train {

enum class Opcode : std::uint8_t {
  mark = '(',
  stop = '.',
  none = 'N',
  newtrue = 0x88,
  newfalse = 0x89,
  binint = 'J',
  binint1 = 'K',
  binint2 = 'M',
  long1 = 0x8a,
  binunicode = 'X',
  global = 'c',
  empty_tuple = ')',
  tuple1 = 0x85,
  tuple2 = 0x86,
  tuple3 = 0x87,
  tuple = 't',
  empty_dict = '}',
  setitem = 's',
  setitems = 'u',
  binput = 'q',
  long_binput = 'r',
  binget = 'h',
  long_binget = 'j',
  binpersid = 'Q',
  reduce = 'R',
  build = 'b',
  proto = 0x80,
};

// Returns text such as `0x52 REDUCE`. A byte that is not an opcode of any protocol has no name.
std::string opcode_text(std::uint8_t opcode);

}  // namespace octavo_train
