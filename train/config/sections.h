// The settings that tasks and models declare: a struct of each, found by its type. A copy is a copy of all.
// SPDX-License-Identifier: MIT
#pragma once

#include <any>
#include <map>
#include <typeindex>

namespace octavo::train {

class Sections {
 public:
  // Default-made where nothing was set yet.
  template <class Section>
  Section& get() {
    std::any& held = held_[typeid(Section)];
    if (!held.has_value()) held = Section{};
    return *std::any_cast<Section>(&held);
  }
  template <class Section>
  [[nodiscard]] const Section& get() const {
    static const Section kNone{};
    const auto found = held_.find(typeid(Section));
    return found == held_.end() ? kNone : *std::any_cast<Section>(&found->second);
  }

 private:
  std::map<std::type_index, std::any> held_;
};

}  // namespace octavo::train
