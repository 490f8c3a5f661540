#pragma once
// Reads one call whose name stands before its arguments, by the row of the family's format.

#include <memory>
#include <string>

#include "text/tools/call_reader.h"
#include "text/tools/header_reader.h"
#include "text/tools/tool_format.h"
#include "text/tools/tool_schemas.h"

namespace somnus {

class NamedCallReader : public CallReader {
 public:
  // All that is given by pointer or reference must outlive the reader.
  NamedCallReader(const ToolFormat& format, const ToolSchemas& schemas, const TurnLimits& limits,
                  CallOutput* output)
      : format_(format), schemas_(schemas), limits_(limits), output_(output), header_(format) {}

  ReadState Read(char c) override;
  void Finish(bool is_cut) override;
  std::string unread() const override;

 private:
  ReadState EndHeader();
  ReadState ReadArguments(char c);
  bool Begin();
  void Emit(const std::string& json);

  const ToolFormat& format_;
  const ToolSchemas& schemas_;
  const TurnLimits limits_;
  CallOutput* const output_;
  HeaderReader header_;
  std::unique_ptr<ArgumentReader> arguments_;  // null: in the header
  bool begun_ = false;
  int64_t bytes_ = 0;
};

}  // namespace somnus
