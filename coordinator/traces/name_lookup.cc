#include "coordinator/traces/name_lookup.h"

#include <time.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

namespace somnus {
namespace {

// All that glibc's asynchronous resolver reads and writes during a lookup.
struct Query {
  std::string host, service;
  addrinfo hints = {};
  gaicb request = {};
  gaicb* list[1] = {&request};
};

}  // namespace

absl::StatusOr<Addresses> LookUp(const std::string& host, int port, MonotonicTime deadline,
                                 const std::function<bool()>& is_cancelled) {
  auto query = std::make_unique<Query>();
  query->host = host;
  query->service = absl::StrCat(port);
  query->hints.ai_socktype = SOCK_STREAM;
  query->request.ar_name = query->host.c_str();
  query->request.ar_service = query->service.c_str();
  query->request.ar_request = &query->hints;
  int result = getaddrinfo_a(GAI_NOWAIT, query->list, 1, nullptr);
  if (result != 0) return absl::UnavailableError(absl::StrCat(host, ": ", gai_strerror(result)));
  while ((result = gai_error(&query->request)) == EAI_INPROGRESS && !is_cancelled()) {
    const absl::Duration left = deadline - MonotonicNow();
    if (left <= absl::ZeroDuration()) break;
    const timespec patience = absl::ToTimespec(std::min(left, kCancelLook));
    gai_suspend(query->list, 1, &patience);
  }
  if (result == EAI_INPROGRESS) {
    // The resolver's thread goes on and writes to the query, which therefore is never freed.
    if (gai_cancel(&query->request) == EAI_NOTCANCELED) {
      (void)query.release();
    } else if (gai_error(&query->request) == 0) {
      freeaddrinfo(query->request.ar_result);  // the answer has just come
    }
    return absl::UnavailableError(absl::StrCat(host, ": its address was not found in time"));
  }
  if (result != 0) return absl::UnavailableError(absl::StrCat(host, ": ", gai_strerror(result)));
  return Addresses(query->request.ar_result);
}

}  // namespace somnus
