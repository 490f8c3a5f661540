#include "text/tools/turn_grammar.h"

#include <utility>

namespace somnus {

bool TurnOutput::Begin(std::string name, std::string id) {
  if (!may_begin()) return false;
  if (id.empty()) id = make_id_(name, num_calls_);
  events_.AddBegin(num_calls_++, std::move(id), std::move(name));
  in_call_ = has_progress_ = true;
  return true;
}

void TurnOutput::Arguments(absl::string_view json) {
  events_.AddText(TurnEvent::Kind::kArguments, json, num_calls_ - 1);
}

void TurnOutput::End(bool is_whole) {
  events_.AddEnd(num_calls_ - 1, !is_whole);
  in_call_ = false;
  has_progress_ = true;
}

}  // namespace somnus
