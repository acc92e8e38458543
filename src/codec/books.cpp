#include "codec/books.h"

#include <map>
#include <mutex>
#include <span>
#include <utility>

#include "codec/density.h"
#include "codec/half_quantiser.h"

namespace tersor::codec {
namespace {

Book make_book(int dim, int bits) {
  HalfQuantiser<Density> half(Density(dim), 1 << (bits - 1));
  half.solve();
  Book book;
  book.distortion = half.distortion();
  const auto& c = half.levels();
  for (size_t i = c.size(); i-- > 0;) book.levels.push_back(-c[i]);
  book.levels.insert(book.levels.end(), c.begin(), c.end());
  return book;
}

// Odd integers nearest to the positive levels when the highest becomes `top`; then the step of least distortion for them.
GridBook snap(const Density& density, std::span<const double> positive, int top) {
  GridBook book;
  const double step = positive.back() / top;
  for (const double level : positive) book.grid.push_back(static_cast<int16_t>(2 * std::lround((level / step - 1) / 2) + 1));
  // The cells belong to the unsnapped levels here: moving their edges is a second-order effect.
  double cross = 0, square = 0;
  const size_t n = positive.size();
  const auto edge = [&](auto&& level, size_t i) { return i == 0 ? 0 : i == n ? density.end() : (level(i - 1) + level(i)) / 2; };
  for (size_t i = 0; i < n; ++i) {
    const auto at = [&](size_t k) { return positive[k]; };
    const Moments cell = moments(density, edge(at, i), edge(at, i + 1));
    cross += book.grid[i] * cell.first, square += static_cast<double>(book.grid[i]) * book.grid[i] * cell.mass;
  }
  book.step = cross / square;
  for (size_t i = 0; i < n; ++i) {
    const auto at = [&](size_t k) { return book.grid[k] * book.step; };
    const Moments cell = moments(density, edge(at, i), edge(at, i + 1));
    book.distortion += 2 * (cell.second - 2 * at(i) * cell.first + at(i) * at(i) * cell.mass);
  }
  return book;
}

GridBook make_grid_book(int dim, int bits) {
  const Density density(dim);
  const auto& levels = lloyd_max_book(dim, bits).levels;
  const std::span<const double> positive(levels.begin() + levels.size() / 2, levels.end());
  GridBook best;
  for (int top = grid_max(bits); 4 * top > 3 * grid_max(bits); top -= 2) {
    GridBook book = snap(density, positive, top);
    if (best.grid.empty() || book.distortion < best.distortion) best = std::move(book);
    if (bits == 1) break;  // one magnitude fits any grid
  }
  const std::vector<int16_t> upper = best.grid;
  best.grid.assign(upper.rbegin(), upper.rend());
  for (int16_t& g : best.grid) g = static_cast<int16_t>(-g);
  best.grid.insert(best.grid.end(), upper.begin(), upper.end());
  return best;
}

// Computes each (dim, bits) once.
template <auto kMake>
const auto& cached(int dim, int bits) {
  static std::mutex mutex;
  static std::map<std::pair<int, int>, decltype(kMake(dim, bits))> books;
  const std::lock_guard lock(mutex);
  const auto key = std::pair(dim, bits);
  const auto found = books.find(key);
  return found != books.end() ? found->second : books.emplace(key, kMake(dim, bits)).first->second;
}

}  // namespace

const Book& lloyd_max_book(int dim, int bits) { return cached<make_book>(dim, bits); }
const GridBook& grid_book(int dim, int bits) { return cached<make_grid_book>(dim, bits); }

}  // namespace tersor::codec
