#pragma once
// Parses HTTP/1.1 responses from arriving bytes; the socket is the caller's. One reader per connection; not
// thread safe.

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

  // Prepares for the next response of the connection.
  void Reset();

  // Takes the bytes that the socket gave, any number of them. Unimplemented for HTTP/2, DataLoss for anything
  // else that is not HTTP/1.
  absl::Status Feed(absl::string_view bytes);
  // To be called when the peer has closed: OK where the close may end the response, DataLoss where the close
  // cuts the response short.
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
