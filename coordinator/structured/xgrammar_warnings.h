#pragma once
// The warnings of xgrammar while this object lives, on the thread that made the object. Objects do not nest.

#include <string>
#include <vector>

namespace somnus {

class XgrammarWarnings {
 public:
  XgrammarWarnings();
  ~XgrammarWarnings();
  XgrammarWarnings(const XgrammarWarnings&) = delete;
  XgrammarWarnings& operator=(const XgrammarWarnings&) = delete;

  // The first few messages, in order.
  const std::vector<std::string>& messages() const { return messages_; }

 private:
  friend void NoteXgrammarWarning(const std::string& message);
  std::vector<std::string> messages_;
};

}  // namespace somnus
