#pragma once
// continue_final_message: a prompt that ends where the last message's text does, so that the model goes on
// with it. The rule, and what is an error, is that of transformers 5 (apply_chat_template): the messages are
// rendered with a mark behind that text, and the prompt is what precedes the mark.

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "coordinator/jinja/chat_template.h"

namespace somnus {

// Renders context["messages"], which is not empty and whose last has a "content" of text, up to the end of
// that text. Where the template removes white space after the text, all that is before the mark goes, too.
// FailedPrecondition: the template does not write the text as it is. Other errors are those of Render.
absl::StatusOr<std::string> RenderContinued(const ChatTemplate& chat_template,
                                            nlohmann::ordered_json context);

}  // namespace somnus
