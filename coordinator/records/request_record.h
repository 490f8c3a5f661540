#pragma once
// A client's or an operator's request that has had its response, for those who write requests down. A value.

#include <optional>
#include <string>

#include "absl/time/time.h"
#include "coordinator/request/request_summary.h"

namespace somnus {

struct RequestRecord {
  std::string protocol;       // "http" or "grpc"
  std::string client;         // its address and port
  std::string request_id;     // of X-Request-Id: any bytes; empty: there is none
  std::string traceparent;    // of W3C Trace Context: any bytes; empty: there is none
  std::string tracestate;     // likewise
  std::string method;         // of HTTP, or of the gRPC service
  std::string route;          // as the table of routes has it, or the gRPC service; never a client's own path
  bool of_operators = false;  // on operators' listener
  bool generates = false;     // the route computes tokens
  int status = 0;             // of HTTP, 499 where the client has left; or gRPC's code, where 0 is OK
  // By the wall clock: the first byte of the request, and the last of the response.
  absl::Time begin, end;
  std::optional<RequestSummary> summary;  // of a request that the engine has taken
};

}  // namespace somnus
