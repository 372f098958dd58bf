// Included by a header of c10d; nothing of it is needed. context.h says why this folder is here.
// SPDX-License-Identifier: MIT
#pragma once
