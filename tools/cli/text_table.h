#pragma once
// Text for terminals of any width: lines that are broken between words, and tables that become lists where
// the table is too wide.

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "tools/cli/terminal.h"

namespace somnus::cli {

// The width for text on stdout: the terminal's columns, or kAnyWidth where stdout is no terminal.
inline constexpr int kAnyWidth = 1 << 20;
int OutputColumns();

// The columns of a text: its characters, without the escape sequences that set colours.
int Width(absl::string_view text);
// The first `columns` characters of a text without escape sequences.
std::string Cut(absl::string_view text, int columns);

// Breaks `text`, a line without its newline, into lines of at most `columns`, each but the first after
// `indent` blanks. Lines break at blanks only, so a longer word makes a longer line. Colours take no columns.
std::string Wrap(absl::string_view text, int columns, int indent);

class TextTable {
 public:
  using Row = std::vector<std::string>;

  // The first `num_text` columns and the last column are text, the columns between are numbers.
  TextTable(Row titles, size_t num_text) : titles_(std::move(titles)), num_text_(num_text) {}

  // A row has as many cells as titles, which are Printable. `style` is the style of the second cell.
  void Add(Row cells, std::optional<Style> style = std::nullopt);

  // Lines of aligned columns below their titles, or, where the lines are wider than `columns`, a paragraph
  // for each row, with the titles before the values, and without the cells that say nothing ("" and "-").
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
