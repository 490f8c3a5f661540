#include "text/tools/turn_event.h"

#include <algorithm>
#include <utility>

#include "base/utf8.h"

namespace somnus {
namespace {

bool IsText(const TurnEvent& event) {
  return event.kind != TurnEvent::Kind::kCallBegin && event.kind != TurnEvent::Kind::kCallEnd;
}

// The number of bytes at the end of `text` that begin a character without ending the character.
size_t IncompleteBytes(absl::string_view text) {
  for (size_t n = 1; n <= std::min<size_t>(3, text.size()); ++n) {
    const auto byte = static_cast<unsigned char>(text[text.size() - n]);
    if ((byte & 0xC0) != 0x80) return byte >= 0xC0 && Utf8Length(byte) > n ? n : 0;
  }
  return 0;
}

}  // namespace

void TurnEvents::AddText(TurnEvent::Kind kind, absl::string_view text, int32_t call) {
  if (text.empty()) return;
  if (events_.empty() || events_.back().kind != kind || events_.back().call != call) {
    events_.push_back({.kind = kind, .call = call});
  }
  events_.back().text.append(text.data(), text.size());
}

void TurnEvents::AddBegin(int32_t call, std::string id, std::string name) {
  events_.push_back(
      {.kind = TurnEvent::Kind::kCallBegin, .call = call, .id = std::move(id), .name = std::move(name)});
}

void TurnEvents::AddEnd(int32_t call, bool is_cut) {
  events_.push_back({.kind = TurnEvent::Kind::kCallEnd, .call = call, .is_cut = is_cut});
}

std::vector<TurnEvent> TurnEvents::Take() {
  std::vector<TurnEvent> taken = std::exchange(events_, {});
  if (taken.empty() || !IsText(taken.back())) return taken;
  TurnEvent& last = taken.back();
  const size_t held = IncompleteBytes(last.text);
  if (held == 0) return taken;
  const size_t whole = last.text.size() - held;
  events_.push_back({.kind = last.kind, .text = last.text.substr(whole), .call = last.call});
  last.text.resize(whole);
  if (whole == 0) taken.pop_back();
  return taken;
}

std::vector<TurnEvent> TurnEvents::TakeAll() { return std::exchange(events_, {}); }

}  // namespace somnus
