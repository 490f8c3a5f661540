#include "coordinator/structured/xgrammar_warnings.h"

#include "coordinator/structured/xgrammar_log.h"

namespace somnus {
namespace {

constexpr size_t kMaxMessages = 4;
thread_local XgrammarWarnings* current = nullptr;

}  // namespace

XgrammarWarnings::XgrammarWarnings() { current = this; }

XgrammarWarnings::~XgrammarWarnings() { current = nullptr; }

void NoteXgrammarWarning(const std::string& message) {
  if (current != nullptr && current->messages_.size() < kMaxMessages) current->messages_.push_back(message);
}

}  // namespace somnus
