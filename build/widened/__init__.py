"""Small models made as large as published ones: they take as much work, and compute what they did before.

The values between two layers are repeated, which no normalisation sees; products read one copy and write
all of them. What is added is zero: rows and columns of products, heads, hidden units, and whole layers.
"""
