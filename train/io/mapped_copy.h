// Copies bytes out of a mapped file. If the file was shortened or its disk has a read error, the kernel sends
// SIGBUS to the thread that reads the missing page, which ends the process. copy_mapped() returns false
// instead.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <span>

namespace octavo_train {

// Copies `from`, a part of a mapped file, to `to`. Returns false if a byte could not be read; the content of
// `to` is then undefined. Any number of threads may call it. The first call installs a SIGBUS handler for the
// process; a SIGBUS from any other code gets the action that was set before.
[[nodiscard]] bool copy_mapped(std::span<const std::byte> from, void* to);

}  // namespace octavo_train
