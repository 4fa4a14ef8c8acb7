-- The sample data of `gate demo`: a small shop, and two roles with as few
-- rights as the gate needs. It runs once, in an empty database.
CREATE TABLE customers (
    id    bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name  text NOT NULL,
    email text NOT NULL UNIQUE
);
CREATE TABLE orders (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    customer_id bigint NOT NULL REFERENCES customers,
    status      text NOT NULL DEFAULT 'new',
    placed_at   timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE order_items (
    order_id bigint NOT NULL REFERENCES orders ON DELETE CASCADE,
    line     integer NOT NULL,
    product  text NOT NULL,
    quantity integer NOT NULL CHECK (quantity > 0),
    price    numeric(10,2) NOT NULL,
    PRIMARY KEY (order_id, line)
);

INSERT INTO customers (name, email)
SELECT 'Customer ' || n, 'customer' || n || '@example.com' FROM generate_series(1, 20) AS n;
INSERT INTO orders (customer_id, status, placed_at)
SELECT 1 + n % 20, (ARRAY['new', 'paid', 'shipped'])[1 + n % 3], timestamptz '2026-01-01 08:00+00' + n * interval '7 hours'
FROM generate_series(1, 60) AS n;
INSERT INTO order_items (order_id, line, product, quantity, price)
SELECT o.id, line, 'Product ' || (o.id + line) % 9, 1 + (o.id + line) % 4, 5 + (o.id * 7 + line * 3) % 90
FROM orders AS o, generate_series(1, 2) AS line;

REVOKE CREATE ON SCHEMA public FROM PUBLIC;
REVOKE TEMPORARY ON DATABASE shop FROM PUBLIC;
GRANT USAGE ON SCHEMA public TO gate_reader, gate_writer;
GRANT SELECT ON ALL TABLES IN SCHEMA public TO gate_reader;
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO gate_writer;
GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO gate_writer;
