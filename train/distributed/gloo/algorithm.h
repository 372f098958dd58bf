// A header of c10d includes this file but needs nothing of it. context.h explains this folder.
// SPDX-License-Identifier: MIT
#pragma once
