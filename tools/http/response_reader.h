#pragma once
// Parses HTTP/1.1 responses from bytes as they arrive, on no socket of its own. One reader per connection;
// not thread safe.

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace somnus {

class ResponseReader {
 public:
  ResponseReader();
  ~ResponseReader();
  ResponseReader(ResponseReader&&) noexcept;
  ResponseReader& operator=(ResponseReader&&) noexcept;

  // Makes ready for the next response of the connection.
  void Reset();

  // Takes what the socket gave, any number of bytes. Unimplemented for HTTP/2, DataLoss for what else is not
  // HTTP/1.
  absl::Status Feed(absl::string_view bytes);
  // The peer closed: ok where that may end the response, DataLoss where it cuts it short.
  absl::Status FeedEof();

  bool header_done() const;
  bool done() const;
  // After header_done().
  int status() const;
  bool keep_alive() const;
  std::string header(absl::string_view name) const;  // empty where there is none

  // The body decoded since the last call.
  std::string TakeBody();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace somnus
