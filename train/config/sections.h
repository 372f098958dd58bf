// Holds the settings that tasks and models declare: one struct of each type, found by its type. Copying a
// Sections copies all structs.
// SPDX-License-Identifier: MIT
#pragma once

#include <any>
#include <map>
#include <typeindex>

namespace octavo_train {

class Sections {
 public:
  // Returns the struct. Default-constructs it on first use.
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

}  // namespace octavo_train
