#pragma once
// Text for terminals of any width: lines that are broken between words, and tables that become lists where
// they are too wide.

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "tools/cli/terminal.h"

namespace somnus::cli {

// How wide what goes to stdout may be: its terminal's columns, or kAnyWidth where it is none.
inline constexpr int kAnyWidth = 1 << 20;
int OutputColumns();

// `text`, one line without its newline, in lines of at most `columns`, each but the first after `indent`
// blanks. Only blanks are broken at, so a longer word makes a longer line. Colours take no columns.
std::string Wrap(absl::string_view text, int columns, int indent);

class TextTable {
 public:
  using Row = std::vector<std::string>;

  // The first `num_text` columns and the last one are text, the others numbers.
  TextTable(Row titles, size_t num_text) : titles_(std::move(titles)), num_text_(num_text) {}

  // As many cells as titles. `style`: of the second one.
  void Add(Row cells, std::optional<Style> style = std::nullopt);

  // Lines of aligned columns below their titles, or, where these are wider than `columns`, a paragraph for
  // each row, with the titles before the values, and without the cells that say nothing ("" and "-").
  std::string Text(int columns) const;

 private:
  struct Entry {
    Row cells;
    std::optional<Style> style;
  };

  std::vector<size_t> Widths() const;
  std::string Line(const Entry& entry, const std::vector<size_t>& widths) const;
  std::string Paragraph(const Entry& entry, int columns) const;

  const Row titles_;
  const size_t num_text_;
  std::vector<Entry> entries_;
};

}  // namespace somnus::cli
