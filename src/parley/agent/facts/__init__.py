"""Numbers, times, dates, prices, names, codes and addresses of a text, and whether a source has them."""
