#pragma once
// A key of rank_pattern and alpha_pattern in a LoRA adapter's adapter_config.json, which says for which
// modules an entry is. PEFT matches a key as Python's re.match(r"(.*\.)?(KEY)$", module): a key that is a
// name stands for all modules whose names end with the key behind a ".", and any key may be a regular
// expression. PCRE2 matches the expressions, within limits. Immutable after Compile; thread safe.

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace somnus {

// A module's name.
struct LoraModuleName {
  std::string canonical;  // as the model calls the module: "model.layers.0.self_attn.q_proj"
  std::string saved;      // as the adapter's file does, which may have the prefixes of a wrapper
};

class ModulePattern {
 public:
  // InvalidArgument: the key is no regular expression, or too long.
  static absl::StatusOr<ModulePattern> Compile(const std::string& key);

  // Names are compared with the canonical name, regular expressions with the saved one. InvalidArgument: the
  // match takes too many steps.
  absl::StatusOr<bool> Matches(const LoraModuleName& module) const;
  // Whether the key has to be matched by a search, and not by comparing.
  bool is_expression() const { return expression_ != nullptr; }
  const std::string& key() const { return key_; }

 private:
  struct Expression;

  explicit ModulePattern(std::string key) : key_(std::move(key)) {}

  std::string key_;
  std::shared_ptr<const Expression> expression_;  // null: the key is a name
};

// Whether `module` is named by `key`, an entry of target_modules, as PEFT matches these: equal, or, but for a
// key that begins with "^", equal from a "." on.
bool NamesModule(absl::string_view key, absl::string_view module);

}  // namespace somnus
