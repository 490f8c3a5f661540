#pragma once
// Another message for an absl::Status.

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/strings/string_view.h"

namespace somnus {

// The code and the payloads of `status`, and `message`; ok stays ok.
inline absl::Status WithMessage(const absl::Status& status, absl::string_view message) {
  absl::Status renamed(status.code(), message);
  status.ForEachPayload(
      [&](absl::string_view url, const absl::Cord& payload) { renamed.SetPayload(url, payload); });
  return renamed;
}

}  // namespace somnus
