// Defines the opcodes of Python's pickle that a state dict needs, and the names of all opcodes for messages.
// SPDX-License-Identifier: MIT
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>

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

// The names of all opcodes as in Python's pickletools, each after its code, in the order of the codes.
inline constexpr std::string_view kOpcodeNames =
    "28 MARK 29 EMPTY_TUPLE 2e STOP 30 POP 31 POP_MARK 32 DUP 42 BINBYTES 43 SHORT_BINBYTES 46 FLOAT 47 "
    "BINFLOAT 49 INT 4a BININT 4b BININT1 4c LONG 4d BININT2 4e NONE 50 PERSID 51 BINPERSID 52 REDUCE 53 "
    "STRING 54 BINSTRING 55 SHORT_BINSTRING 56 UNICODE 58 BINUNICODE 5d EMPTY_LIST 61 APPEND 62 BUILD 63 "
    "GLOBAL 64 DICT 65 APPENDS 67 GET 68 BINGET 69 INST 6a LONG_BINGET 6c LIST 6f OBJ 70 PUT 71 BINPUT 72 "
    "LONG_BINPUT 73 SETITEM 74 TUPLE 75 SETITEMS 7d EMPTY_DICT 80 PROTO 81 NEWOBJ 82 EXT1 83 EXT2 84 EXT4 85 "
    "TUPLE1 86 TUPLE2 87 TUPLE3 88 NEWTRUE 89 NEWFALSE 8a LONG1 8b LONG4 8c SHORT_BINUNICODE 8d BINUNICODE8 "
    "8e BINBYTES8 8f EMPTY_SET 90 ADDITEMS 91 FROZENSET 92 NEWOBJ_EX 93 STACK_GLOBAL 94 MEMOIZE 95 FRAME 96 "
    "BYTEARRAY8 97 NEXT_BUFFER 98 READONLY_BUFFER ";

// Returns text such as `0x52 REDUCE`. A byte that is not an opcode of any protocol has no name.
inline std::string opcode_text(std::uint8_t opcode) {
  const std::string code = fmt::format("{:02x} ", opcode);
  const std::size_t at = kOpcodeNames.find(code);
  const std::string_view name = at == kOpcodeNames.npos ? "" : kOpcodeNames.substr(at + code.size());
  return "0x" + code.substr(0, 2) + (name.empty() ? "" : " ") + std::string(name.substr(0, name.find(' ')));
}

}  // namespace octavo_train
