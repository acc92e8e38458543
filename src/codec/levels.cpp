#include "codec/levels.h"

#include "codec/books.h"

namespace tersor::codec {

LevelTable lloyd_max_table(int dim, int bits) {
  const GridBook& book = grid_book(dim, bits);
  LevelTable table;
  table.grid = book.grid;
  table.step = static_cast<float>(book.step);
  for (size_t i = 0; i < book.grid.size(); ++i) {
    table.levels.push_back(static_cast<float>(book.grid[i] * book.step));
    if (i > 0) table.thresholds.push_back(static_cast<float>((book.grid[i - 1] + book.grid[i]) / 2 * book.step));
  }
  return table;
}

const LevelTable& sign_table() {
  static const LevelTable table{{-1.0f, 1.0f}, {0.0f}, {-255, 255}, 1.0f / 255};
  return table;
}

LevelTable table_on_grid(std::span<const double> levels, int bits) {
  const double step = levels.back() / grid_max(bits);
  LevelTable table;
  table.step = static_cast<float>(step);
  for (const double level : levels) {
    const long half = std::lround((std::abs(level) / step - 1) / 2);
    table.grid.push_back(static_cast<int16_t>(level < 0 ? -(2 * half + 1) : 2 * half + 1));
    table.levels.push_back(static_cast<float>(table.grid.back() * step));
    if (table.levels.size() > 1) table.thresholds.push_back((table.levels.end()[-2] + table.levels.back()) / 2);
  }
  return table;
}

float level_scalar(ScalarRule rule, std::span<const double> y, std::span<const Code> codes, std::span<const float> levels) {
  double norm2 = 0, yc = 0, cc = 0;
  for (size_t i = 0; i < y.size(); ++i) {
    const double level = levels[codes[i]];
    norm2 += y[i] * y[i], yc += y[i] * level, cc += level * level;
  }
  if (norm2 == 0) return 0;
  const double scalar = rule == ScalarRule::unbiased ? norm2 / yc
                        : rule == ScalarRule::norm   ? std::sqrt(norm2 / static_cast<double>(y.size()))
                                                     : yc / cc;
  return decode_norm(encode_norm(static_cast<float>(scalar)));
}

}  // namespace tersor::codec
