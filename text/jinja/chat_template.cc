#include "text/jinja/chat_template.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/parser.h"

namespace somnus {
namespace {

class JinjaTemplate : public ChatTemplate {
 public:
  JinjaTemplate(std::string source, jinja::Block block, const ChatTemplateLimits& limits)
      : source_(std::move(source)), block_(std::move(block)), limits_(limits) {}

  absl::StatusOr<std::string> Render(const nlohmann::ordered_json& context) const override {
    if (!context.is_object()) return absl::InvalidArgumentError("the template's context is not an object");
    ASSIGN_OR_RETURN(const jinja::Value variables, jinja::FromJson(context));
    return jinja::Interpreter(limits_).Render(block_, variables);
  }

  const std::string& source() const override { return source_; }

 private:
  const std::string source_;
  const jinja::Block block_;
  const ChatTemplateLimits limits_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ChatTemplate>> ChatTemplate::Compile(const std::string& source,
                                                                    const ChatTemplateLimits& limits) {
  if (static_cast<int64_t>(source.size()) > limits.max_template_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the template is longer than ", limits.max_template_bytes, " bytes"));
  }
  if (!IsUtf8(source)) return absl::InvalidArgumentError("the template is not UTF-8");
  ASSIGN_OR_RETURN(jinja::Block block, jinja::ParseTemplate(source, limits.max_depth));
  return std::make_unique<JinjaTemplate>(source, std::move(block), limits);
}

}  // namespace somnus
