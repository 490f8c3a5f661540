#pragma once
// A question of a conversation on the terminal, which may have several lines.

#include <string>

#include "tools/cli/line_editor.h"

namespace somnus::cli {

// Reads a question. A pasted text is a single question with its line breaks, a line that ends with a
// backslash continues on the next line, and a text that begins with """ ends at the next """. Ctrl-D on an
// empty line ends a question that has begun. Results are the editor's, and only kLine changes `question`,
// which has no blanks at its end.
LineEditor::Result ReadQuestion(LineEditor* editor, std::string* question);

}  // namespace somnus::cli
