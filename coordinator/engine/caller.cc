#include "coordinator/engine/caller.h"

#include <utility>

namespace somnus {
namespace {

thread_local std::shared_ptr<const Caller> current;

}  // namespace

CallerScope::CallerScope(Caller caller)
    : before_(std::exchange(current, std::make_shared<const Caller>(std::move(caller)))) {}

CallerScope::~CallerScope() { current = std::move(before_); }

std::shared_ptr<const Caller> CurrentCaller() { return current; }

Caller BegunCaller() {
  return {.name = current == nullptr ? "" : current->name, .has_left = [] { return false; }};
}

absl::Status CheckCaller() {
  return current != nullptr && current->has_left() ? absl::CancelledError(kAbandoned) : absl::OkStatus();
}

}  // namespace somnus
