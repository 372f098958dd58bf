// Makes the page of a survey, which needs no network.
// SPDX-License-Identifier: MIT
#pragma once

#include "apps/octavo/recordings/survey.h"

#include <string>

namespace octavo::recordings {

std::string survey_page(const std::string& title, const Survey& survey);

}  // namespace octavo::recordings
